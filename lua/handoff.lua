-- Passes locks from one owner to another: the release of the one and the
-- acquisition of the other in one step, so nobody can come between.
--
-- KEYS  n lock keys, then their n token counters if a token is wished
-- ARGV  from field, lease of the new owner (ms), n, life of a counter (ms; 0 = for ever), to field
--
-- Replies
--   {1, token}   every key holds to = 1 for at least the lease; token 0, or 1 alone, without counters
--   {0, i}       lost: key i holds neither; nothing was changed
--   {-3, i}      counter i holds something else than a token
--
-- Sent again it finds `to` in place, lengthens, and mints a newer token.

-- The usual case, one key and no token.
if #KEYS == 1 and redis.pcall('hdel', KEYS[1], ARGV[1]) == 1 then
  redis.call('hset', KEYS[1], ARGV[5], '1')
  redis.call('pexpire', KEYS[1], ARGV[2])
  return 1
end

-- prelude
local from, lease, n, keep, to = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local passed = {}
for i = 1, n do
  passed[i] = held(KEYS[i], to)
  if not passed[i] and not held(KEYS[i], from) then return {0, i} end
end

local token, bad = next_token(n)
if not token then return {-3, bad} end

for i = 1, n do
  redis.call('hdel', KEYS[i], from) -- first: it needs no memory
  if passed[i] then
    lengthen(KEYS[i], lease)
  else
    redis.call('hset', KEYS[i], to, '1')
    redis.call('pexpire', KEYS[i], lease)
  end
end
store_token(n, token, keep)
return {1, token}
