-- Hands locks over from one owner to another: the release and the acquisition are one step, so no other owner can
-- acquire the locks in between.
--
-- KEYS  n lock keys, then their n token counters if a token is requested
-- ARGV  from field, lease of the new owner (ms), n, lifetime of a counter (ms; 0 = forever), to field
--
-- Replies
--   {1, token}   every key holds to = 1 for at least the lease; token 0, or 1 alone, without counters
--   {0, i}       lost: key i holds neither field; nothing was changed
--   {-3, i}      counter i holds something other than a token
--
-- If it is sent again, it finds `to` in place, lengthens the lease, and mints a newer token.
--
-- No key is ever without a field. Otherwise the key would be deleted and created again, and while its slot moves, Redis
-- would reject that in the middle of the script.

-- The usual case, one key and no token.
if #KEYS == 1 and redis.pcall('hexists', KEYS[1], ARGV[1]) == 1 then
  redis.call('pexpire', KEYS[1], ARGV[2]) -- needs no memory, and so opens the way for HSET
  redis.call('hset', KEYS[1], ARGV[5], '1')
  if redis.call('hdel', KEYS[1], ARGV[1]) == 0 then redis.call('pexpire', KEYS[1], ARGV[2]) end -- HSET has created the key: see take
  return 1
end

-- prelude
local from, lease, n, keep, to = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local passed = {}
for i = 1, n do
  passed[i] = held(KEYS[i], to)
  if not passed[i] and not held(KEYS[i], from) then return {0, i} end
end

-- mutant: handoff-no-token
local token, bad = next_token(n)
if not token then return {-3, bad} end

for i = 1, n do
  if passed[i] then
    lengthen(KEYS[i], lease)
  else
    redis.call('hdel', KEYS[i], '') -- needs no memory, and so opens the way for HSET
    local refused = take(KEYS[i], to, lease)
    if refused then return refused end
  end
  redis.call('hdel', KEYS[i], from)
end
store_token(n, token, keep)
return {1, token}
