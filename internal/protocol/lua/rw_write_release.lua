-- Reduces the hold count of a write hold; 0 ends it, and wakes the
-- waiters: the lock is free, or its owner reads on. A claim of the field is withdrawn.
--
-- KEYS  the lock, and its claim if field may have claimed it
-- ARGV  prefix, field, count, publish command, channel
--
-- Replies
--   receivers        done; if the hold has ended, the message reached so many processes, -1 if the server refused to count
--   {0, 0}           not ours: the lock did not hold field

-- The usual case: the only count, no claim, and its owner does not read. Defining functions would
-- cost more than it does.
if ARGV[3] == '0' and redis.pcall('hlen', KEYS[1]) == 2 and
  redis.call('hexists', KEYS[1], ARGV[2]) == 1 and (not KEYS[2] or redis.call('exists', KEYS[2]) == 0) then
  redis.call('del', KEYS[1])
  local receivers = redis.pcall(ARGV[4], ARGV[5], '1') -- see wake_all
  redis.pcall(ARGV[4], ARGV[5], '0')
  if type(receivers) == 'table' then receivers = -1 end
  return receivers
end

-- prelude
local claim, field, count, publish, channel = KEYS[2], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local ours, gone, other, longest, from, claimant = held(lock, field), {[field] = 0}
if ours and count == 0 then other, longest = heir(gone, few) end
if claim then from, claimant = claimed(claim) end
if claimant == field then
  -- The claim may count for other writers. For a moment it stays without a writer, so that a writer that still waits takes
  -- it over with its age. The wake-up is for that writer, and for the readers that waited because of the claim.
  local kept = redis.pcall('set', claim, string.format('%.0f ', from), 'px', 50)
  if kept.err then redis.call('del', claim) end -- out of memory
  if not ours then wake(publish, channel) end
end
if not ours then return {0, 0} end
if count > 0 then
  redis.call('hdel', lock, '') -- needs no memory, and so opens the way for HSET
  return recount(lock, field, count) and 0 or {0, 0}
end
-- mutant: writer-ends-readers
settle(gone, other, longest)
return wake_all(publish, channel)
