-- Releases a lock, and removes any entry of the owner in its line. The first live entry gets the
-- lock. Without one, the script wakes all subscribers, and the first waiter for Java's fair lock.
--
-- KEYS  as in the prelude, or the lock alone, which is then released to all
-- ARGV  field, channel of the lock, publish command, the subcommand of PUBSUB that counts the
--       subscribers of a channel ('' = they cannot be counted here); without the last two they are
--       `publish` and `numsub`: each argument takes time
--
-- Replies
--   receivers        done, and free for all; the message reached so many processes, -1 if the server refused to count
--   'receivers'      done, and granted to the first in line
--   {0, receivers}   not ours: the lock did not hold field; its entry in the line is gone
--
-- The message 1 instead of 0 announces a turn of foreign waiters: it wakes all waiters of Redisson. Processes in the
-- line ignore it; only the first of them is asked to poll.
--
-- The next owner is added before the last one is removed. If the key were deleted and created again while its slot moves,
-- Redis would refuse that half-way.

-- The usual cases: the line is empty, or its first process is subscribed, gets the lock, and wants no token.
-- Defining functions would cost more than they do.
local channel, publish, count = ARGV[2], ARGV[3] or 'publish', ARGV[4] or 'numsub'
-- mutant: release-no-owner/3
if KEYS[3] and redis.pcall('exists', KEYS[3], KEYS[5]) == 0 and redis.pcall('hdel', KEYS[1], ARGV[1]) == 1 then
  local receivers = redis.pcall(publish, channel, '0')
  if type(receivers) == 'table' then receivers = -1 end -- see wake
  return receivers
end
local alone = KEYS[3] and redis.pcall('hexists', KEYS[1], ARGV[1]) == 1 and redis.call('hlen', KEYS[1]) == 1
-- mutant: fair-last-first/1
local first = alone and redis.pcall('zrange', KEYS[3], '0', '0')[1]
local entry = first and redis.pcall('hget', KEYS[4], first)
local known = entry and redis.pcall('hget', KEYS[4], '')
if type(entry) == 'string' and known and first ~= ARGV[1] then
  local till, lease, ticket, grants = string.match(entry, '^(%d+) (%d+) %-1 (%d+) 0 (.*)$')
  local foreign = till and redis.call('hexists', KEYS[4], grants) == 0 and string.match(known, '^(%d+) %d+ 0 0 0$') -- see serve
  local now = redis.call('time')
  now = now[1] * 1000 + now[2] / 1000
  -- mutant: fair-dead-served/1
  if till and tonumber(till) > now and foreign and tonumber(foreign) > now
    and tonumber(foreign) <= now + 10000 -- see ahead
    and (count == '' or redis.pcall('pubsub', count, grants)[2] ~= 0) then
    redis.call('zrem', KEYS[3], first, ARGV[1])
    redis.call('hdel', KEYS[4], first, ARGV[1])
    if redis.call('exists', KEYS[3]) == 0 then redis.call('hdel', KEYS[4], '', 'aside') end -- see unqueue
    redis.call('hset', KEYS[1], first, '1')
    local receivers
    local set = redis.pcall('pexpire', KEYS[1], lease)
    if set == 0 then -- see take
      redis.call('hset', KEYS[1], first, '1')
      set = redis.pcall('pexpire', KEYS[1], lease)
    end
    if type(set) == 'table' then
      redis.call('hdel', KEYS[1], first, ARGV[1]) -- see take
      receivers = redis.pcall(publish, channel, '0')
    else
      redis.call('hdel', KEYS[1], ARGV[1])
      receivers = redis.pcall(publish, grants, ticket .. ' 0')
    end
    if type(receivers) == 'table' then receivers = -1 end -- see wake
    return tostring(receivers)
  end
end

-- prelude
local field = ARGV[1]
-- mutant: release-no-owner/4
local ours = held(lock, field)

local served, receivers, leaves = false, 0, false
if queue and not spoiled() and queue then
  local asked = not ours and redis.call('zrange', queue, '0', '0')[1] == field
  leave(field)
  if ours and redis.call('hlen', lock) == 1 then
    local head = first(count)
    leaves = head and foreign_turn()
    if leaves then
      redis.pcall(publish, head.channel, 'ask')
    else
      served, receivers = serve(publish, head, field)
    end
  -- mutant: line-grant-without-owner
  elseif not ours and redis.call('exists', lock) == 0 then
    if reserved(false) == 0 then
      served, receivers = serve(publish, first(count), field)
    elseif asked then
      local head = first(count) -- which is to poll after the turn of foreign waiters, in place of field
      if head then redis.pcall(publish, head.channel, 'ask') end
    end
  end
end
-- mutant: release-no-owner/5
if ours and not served then redis.call('hdel', lock, field) end
if not ours then return {0, receivers or 0} end
if served then return tostring(receivers) end
receivers = wake(publish, channel, leaves and '1')
local java = wake_java(publish, channel, KEYS[5])
return receivers < 0 and receivers or receivers + java
