-- Takes every lock for a new owner, or none of them.
--
-- KEYS  n lock keys, then their n token counters if a token is wished
-- ARGV  field, lease (ms), n, life of a counter (ms; 0 = for ever)
--
-- Replies
--   {1, token}               all n keys hold field = 1 for at least the lease; token 0 without counters
--   {0, pttl, i, holder}     key i is held by somebody else for pttl ms (-1: it has no expiry)
--   {-1, i}                  key i holds something else than a lock, {-2, i} a read-write lock
--   {-3, i}                  counter i holds something else than a token
--
-- Sent again it finds the field it made, lengthens, and mints a newer token.
local field, lease, n, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local ours = {}
for i = 1, n do
  local fields = redis.pcall('hlen', KEYS[i])
  if type(fields) == 'table' then
    if string.find(fields.err, 'WRONGTYPE', 1, true) then return {-1, i} end
    return fields
  end
  if fields > 0 then
    ours[i] = fields == 1 and redis.call('hexists', KEYS[i], field) == 1
    if not ours[i] then
      if redis.call('hexists', KEYS[i], 'mode') == 1 then return {-2, i} end
      if fields >= 64 then return {-1, i} end -- no lock, and too long to be read at every try
      return {0, redis.call('pttl', KEYS[i]), i, redis.call('hkeys', KEYS[i])[1]}
    end
  end
end

local token, bad = next_token(n)
if not token then return {-3, bad} end

for i = 1, n do
  if ours[i] then
    lengthen(KEYS[i], lease)
  else
    -- HSET comes first because it is what a server out of memory refuses; a
    -- refused PEXPIRE is taken back, so that no key stays without expiry.
    redis.call('hset', KEYS[i], field, 1)
    local set = redis.pcall('pexpire', KEYS[i], lease)
    if type(set) == 'table' then
      for j = 1, i do
        if not ours[j] then redis.call('hdel', KEYS[j], field) end
      end
      return set
    end
  end
end
store_token(n, token, keep)
return {1, token}
