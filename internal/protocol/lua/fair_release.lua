-- Gives a fair lock back, and with it any place in the queue; the first live waiter gets the
-- lock, or all that listen are woken if there is none, and the first who waits in Java.
--
-- KEYS  those of all, and the queue of Java's fair lock; or the lock alone, which is then given
--       back to all
-- ARGV  field, publish command, channel of the lock, the subcommand of PUBSUB that counts the
--       listeners of a channel ('' = they cannot be counted here)
--
-- Replies
--   heard        done; so many processes heard of it, -1 if the server refused to tell
--   {0, heard}   not ours: the lock did not hold field; its place in the queue is gone
--
-- The lock has the next owner before it is rid of the last: a key that went away and came back
-- would be refused half-way where its slot is on the move.

-- The usual case: the first of the queue listens, gets the lock, and wishes for no token. To define
-- functions costs more than it does.
local alone = KEYS[2] and redis.pcall('hexists', KEYS[1], ARGV[1]) == 1 and redis.call('hlen', KEYS[1]) == 1
local first = alone and redis.pcall('zrange', KEYS[2], '0', '0')[1]
local entry = first and redis.pcall('hget', KEYS[3], first)
if type(entry) == 'string' and first ~= ARGV[1] then
  local till, lease, ticket, channel = string.match(entry, '^(%d+) (%d+) %-1 (%d+) 0 (.*)$')
  local now = redis.call('time')
  if till and till - now[1] * 1000 > now[2] / 1000
    and (ARGV[4] == '' or redis.pcall('pubsub', ARGV[4], channel)[2] ~= 0) then
    redis.call('zrem', KEYS[2], first, ARGV[1])
    redis.call('hdel', KEYS[3], first, ARGV[1])
    redis.call('hset', KEYS[1], first, '1')
    local heard
    if type(redis.pcall('pexpire', KEYS[1], lease)) == 'table' then
      redis.call('hdel', KEYS[1], first, ARGV[1]) -- see take
      heard = redis.pcall(ARGV[2], ARGV[3], '0')
    else
      redis.call('hdel', KEYS[1], ARGV[1])
      heard = redis.pcall(ARGV[2], channel, ticket .. ' 0')
    end
    if type(heard) == 'table' then heard = -1 end -- see wake
    return heard
  end
end

-- prelude
local field, publish = ARGV[1], ARGV[2]
local ours = held(lock, field)

local served, heard = false, 0
if queue and not spoiled() then
  leave(field)
  if ours and redis.call('hlen', lock) == 1 or not ours and redis.call('exists', lock) == 0 then
    served, heard = serve(publish, ARGV[4], field)
  end
end
if ours and not served then redis.call('hdel', lock, field) end
if not ours then return {0, heard or 0} end
if served then return heard end
heard = wake(publish, ARGV[3])
local told = wake_java(publish, ARGV[3], KEYS[5])
return heard < 0 and heard or heard + told
