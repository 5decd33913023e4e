-- Sets the hold counts of locks that are already held.
--
-- KEYS  n lock keys, then their n token counters if a token is requested
-- ARGV  field, lease (ms), n, lifetime of a counter (ms; 0 = forever), then n counts
--
-- Replies
--   {1, token}   every key holds field = its count, for at least the lease; token 0, or 1 alone, without counters
--   {0, i}       lost: key i does not hold field; no other owner's hold was changed
--   {-3, i}      counter i holds something other than a token

-- The usual case, one key and no token. It comes before the prelude, whose functions cost more than this case.
if #KEYS == 1 and redis.pcall('hexists', KEYS[1], ARGV[1]) == 1 then
  if redis.call('pttl', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('pexpire', KEYS[1], ARGV[2]) -- needs no memory, and so opens the way for HSET
  else
    redis.call('hdel', KEYS[1], '')
  end
  if redis.call('hset', KEYS[1], ARGV[1], ARGV[5]) == 0 then return 1 end
  redis.call('hdel', KEYS[1], ARGV[1]) -- see recount
  return {0, 1}
end

-- prelude
local field, lease, n, keep = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
for i = 1, n do
  if not held(KEYS[i], field) then return {0, i} end
end

local token, bad = next_token(n)
if not token then return {-3, bad} end

for i = 1, n do
  -- A write that needs no memory goes first. After it the other writes are allowed, even on a server that is out of
  -- memory.
  redis.call('hdel', KEYS[i], '')
  lengthen(KEYS[i], lease)
  if not recount(KEYS[i], field, ARGV[4 + i]) then return {0, i} end
end
store_token(n, token, keep)
return {1, token}
