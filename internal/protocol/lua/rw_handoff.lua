-- Passes a read-write lock from one writer to another: the release of the one and the
-- acquisition of the other in one step, so that no other owner can come between.
--
-- KEYS  the lock, and its token counter if a token is wanted
-- ARGV  prefix, from field, lease of the new owner (ms), life of a counter (ms; 0 = forever), to field
--
-- Replies
--   {1, token}   `to` writes, for at least the lease; token 0, or 1 alone, without a counter
--   {0, 1}       lost: the lock holds neither; nothing was changed
--   {-3, 1}      the counter contains something other than a token
--   {-6, 1}      from also reads, and other readers may follow; nothing was changed
--
-- Sent again, it finds `to` in place, extends the lease, and creates a newer token.

-- The usual case: no token, and from does not read. Defining functions would cost more than it does.
if #KEYS == 1 and redis.pcall('hlen', KEYS[1]) == 2 and redis.call('hdel', KEYS[1], ARGV[2]) == 1 then
  redis.call('pexpire', KEYS[1], ARGV[3])
  if redis.call('hset', KEYS[1], 'mode', 'write', ARGV[5], '1') == 2 then redis.call('pexpire', KEYS[1], ARGV[3]) end -- HSET has created the key: see take
  return 1
end

-- prelude
local from, lease, keep, to = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local passed = held(lock, to)
if not passed then
  if not held(lock, from) then return {0, 1} end
  local fields = redis.call('hlen', lock)
  if fields ~= 2 then return {fields == 0 and 0 or -6, 1} end -- 0: see examine
end

local token = next_token(1)
if not token then return {-3, 1} end
redis.call('hdel', lock, from) -- first: it needs no memory
if not (passed and lengthen(lock, lease)) then
  redis.call('pexpire', lock, lease)
  if redis.call('hset', lock, 'mode', 'write', to, '1') == 2 then redis.call('pexpire', lock, lease) end -- see above
end
store_token(1, token, keep)
return {1, token}
