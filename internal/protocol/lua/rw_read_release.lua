-- Reduces the hold count of a read hold; 0 ends it. If it was the last reader, the lock is free,
-- and its waiters are woken.
--
-- ARGV  prefix, field, count, publish command, channel
--
-- Replies
--   receivers        done; if the lock is free, the message reached so many processes, -1 if the server refused to count
--   {0, 0}           not ours: the lock did not hold field

-- The usual case: the only count of the last reader, or of one of several. Defining functions
-- would cost more than it does.
local found = ARGV[3] == '0' and redis.pcall('hmget', KEYS[1], 'mode', ARGV[2])
if found and found[1] == 'read' and found[2] == '1' then
  local mine = ARGV[1] .. ':' .. ARGV[2] .. ':rwlock_timeout:1'
  local some = redis.pcall('hrandfield', KEYS[1], '3') -- unknown before Redis 6.2
  if #some == 2 then
    redis.call('del', KEYS[1], mine)
    local receivers = redis.pcall(ARGV[4], ARGV[5], '0')
    if type(receivers) == 'table' then receivers = -1 end -- see wake
    return receivers
  end
  -- The lock may live a second longer than the longest of few readers, and for as long as it likes
  -- if they are many, or it does so already: then any other that is alive will do.
  local enough = 0
  if redis.call('hlen', KEYS[1]) < 17 then -- see few
    enough = redis.call('pttl', KEYS[1]) - 1000
    if enough < 0 or redis.call('pttl', mine) < enough then enough = 0 end
  end
  for _, other in ipairs(some) do
    if other ~= 'mode' and other ~= ARGV[2] and
      redis.call('pttl', ARGV[1] .. ':' .. other .. ':rwlock_timeout:1') >= enough then
      redis.call('del', mine) -- first: see rw_prelude.lua
      redis.call('hdel', KEYS[1], ARGV[2])
      return 0
    end
  end
end

-- prelude
local field, count = ARGV[2], tonumber(ARGV[3])
if not held(lock, field) then return {0, 0} end
local mode = redis.call('hget', lock, 'mode')
if mode ~= 'read' and mode ~= 'write' then return {0, 0} end -- a plain lock, which has the same fields
local had = levels_of(field)
left(field, had) -- or, while the slot moves, an error
if count > 0 then
  redis.call('hdel', lock, '') -- needs no memory, and so opens the way for HSET
  if not recount(lock, field, count) then return {0, 0} end
  untime(field, count + 1, had)
  return 0
end

if mode == 'write' then
  untime(field, 1, had)
  redis.call('hdel', lock, field)
  return 0
end
local gone = {[field] = had}
if not settle(gone, survey(gone, few)) then return 0 end
return wake(ARGV[4], ARGV[5])
