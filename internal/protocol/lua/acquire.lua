-- Takes every lock for a new owner, or none of them.
--
-- KEYS  n lock keys, then their n token counters if a token is wished
-- ARGV  field, lease (ms), n, life of a counter (ms; 0 = for ever)
--
-- Replies
--   {1, token}               all n keys hold field = 1 for at least the lease; token 0, or 1 alone, without counters
--   {0, pttl, i, holder}     key i is held by another owner for pttl ms (-1: it has no expiry)
--   {-1, i}                  key i holds something else than a lock, {-2, i} a read-write lock
--   {-3, i}                  counter i holds something else than a token
--
-- Sent again it finds the field it made, lengthens, and mints a newer token.

-- The usual case, one key that is free and no token. To define functions costs more than it does.
if #KEYS == 1 and redis.pcall('hlen', KEYS[1]) == 0 then
  redis.call('hset', KEYS[1], ARGV[1], '1')
  local set = redis.pcall('pexpire', KEYS[1], ARGV[2])
  if type(set) ~= 'table' then return 1 end
  redis.call('hdel', KEYS[1], ARGV[1]) -- see take
  return set
end

-- prelude
local field, lease, n, keep = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local ours = {}
for i = 1, n do
  local busy
  ours[i], busy = examine(KEYS[i], i, field)
  if busy then return busy end
end

local token, bad = next_token(n)
if not token then return {-3, bad} end

for i = 1, n do
  if ours[i] then
    lengthen(KEYS[i], lease)
  else
    local refused = take(KEYS[i], field, lease)
    if refused then
      for j = 1, i - 1 do
        if not ours[j] then redis.call('hdel', KEYS[j], field) end
      end
      return refused
    end
  end
end
store_token(n, token, keep)
return {1, token}
