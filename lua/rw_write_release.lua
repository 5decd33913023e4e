-- Sets the levels of a write hold on the way down; a count of 0 ends it, and wakes the
-- waiters: the lock is free, or its owner reads on. A claim of the field goes with it.
--
-- ARGV  prefix, field, count, publish command, channel
--
-- Replies
--   {1, heard}   done; if the hold has ended, so many processes heard of it, -1 if the server refused to tell
--   {0, 0}       not ours: the lock did not hold field
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
