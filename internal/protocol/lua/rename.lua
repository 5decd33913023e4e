-- Has a lock known by the name of the owner that holds it now: owners of one process have followed
-- one another under one lease, and Redis is told of the last of them.
--
-- KEYS  the lock key
-- ARGV  from field, to field, lease (ms), channel of the lock, the subcommand of PUBSUB that counts
--       its listeners ('' = they cannot be counted here)
--
-- Replies
--   {1, listeners}   the key holds to = 1, for at least the lease; so many connections wait for its
--                    release, -1 if that is not known
--   {0, 0}           lost: the key holds neither; nothing was changed
--
-- Sent again, or late, it finds `to` in place, or neither. It makes no lock, and shortens no lease.

-- The usual case. To define functions costs more than it does.
local from, to, lease, count = ARGV[1], ARGV[2], ARGV[3], ARGV[5]
local listeners = -1
if count ~= '' then listeners = redis.pcall('pubsub', count, ARGV[4])[2] or -1 end -- of an error there is no [2]
if redis.pcall('hexists', KEYS[1], from) == 1 then
  if redis.call('pttl', KEYS[1]) < tonumber(lease) then
    redis.call('pexpire', KEYS[1], lease) -- needs no memory, and so opens the way for HSET
  else
    redis.call('hdel', KEYS[1], '')
  end
  redis.call('hset', KEYS[1], to, '1')
  if from ~= to then redis.call('hdel', KEYS[1], from) end
  return {1, listeners}
end

-- prelude
if not held(KEYS[1], to) then return {0, 0} end
lengthen(KEYS[1], lease)
return {1, listeners}
