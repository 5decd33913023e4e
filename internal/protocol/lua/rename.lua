-- Writes the name of the current owner: owners of one process have followed
-- one another under one lease, and only the last of them is written.
--
-- KEYS  the lock key, and its line, if the number of waiters is wanted
-- ARGV  from field, to field, lease (ms)
--
-- Replies
--   {1, waiters}   the key holds to = 1, for at least the lease; the number of waiters in the line, -1 if that is
--                  not known
--   {0, 0}         lost: the key holds neither; nothing was changed
--
-- Sent again, or delayed, it finds `to` in place, or neither. It creates no lock, and shortens no lease.

-- The usual case. Defining functions would cost more than it does.
local from, to, lease = ARGV[1], ARGV[2], ARGV[3]
local waiters = KEYS[2] and redis.pcall('zcard', KEYS[2])
if type(waiters) ~= 'number' then waiters = -1 end
if redis.pcall('hexists', KEYS[1], from) == 1 then
  if redis.call('pttl', KEYS[1]) < tonumber(lease) then
    redis.call('pexpire', KEYS[1], lease) -- needs no memory, and so opens the way for HSET
  else
    redis.call('hdel', KEYS[1], '')
  end
  local made = redis.call('hset', KEYS[1], to, '1')
  if from ~= to then made = 1 - redis.call('hdel', KEYS[1], from) end
  if made == 0 then return {1, waiters} end
  redis.call('hdel', KEYS[1], to) -- see recount
  return {0, 0}
end

-- prelude
-- mutant: rename-recreates
if not (held(KEYS[1], to) and lengthen(KEYS[1], lease)) then return {0, 0} end
return {1, waiters}
