-- Sets the levels of a write hold on the way down; a count of 0 ends it, and wakes the
-- waiters: the lock is free, or its owner reads on. A claim of the field goes with it.
--
-- ARGV  prefix, field, count, publish command, channel
--
-- Replies
--   {1, heard}   done; if the hold has ended, so many processes heard of it, -1 if the server refused to tell
--   {0, 0}       not ours: the lock did not hold field

-- The usual case: the only level, no claim, and its owner does not read. To define functions
-- costs more than it does.
if ARGV[3] == '0' and redis.pcall('hlen', KEYS[1]) == 2 and redis.call('exists', KEYS[2]) == 0 and
  redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('del', KEYS[1])
  local heard = redis.pcall(ARGV[4], ARGV[5], '1') -- see wake_all
  redis.pcall(ARGV[4], ARGV[5], '0')
  if type(heard) == 'table' then heard = -1 end
  return {1, heard}
end

-- prelude
local field, count, publish, channel = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local _, claimant = claimed()
local withdrawn = claimant == field and redis.call('del', claim) == 1
if not held(lock, field) then
  if withdrawn then wake(publish, channel) end -- whom the claim has kept out, or who has another
  return {0, 0}
end
if count > 0 then
  redis.call('hdel', lock, '') -- needs no memory, and so opens the way for HSET
  redis.call('hset', lock, field, count)
  return {1, 0}
end
redis.call('hdel', lock, field)
settle()
return {1, wake_all(publish, channel)}
