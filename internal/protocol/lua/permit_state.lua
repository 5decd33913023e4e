-- Reads a semaphore.
--
-- Replies
--   {1, waiting, member, ms, ...}   the number of entries in the line, and the permits in use, with the rest of their leases
--   {-1, 1}                         the key is no semaphore
--   {-4, 1}                         the key of the line contains something else
if queue and spoiled() then return {-4, 1} end
local n, other = size()
if not n then return other end
local now, all = clock(), redis.call('zrange', set, '0', '-1', 'withscores')
local reply = {1, queue and redis.call('zcard', queue) or 0}
for i = 1, #all, 2 do
  if weight(all[i]) and tonumber(all[i + 1]) > now then -- else it is over, or one of several members of a permit
    reply[#reply + 1] = all[i]
    reply[#reply + 1] = tonumber(all[i + 1]) - now
  end
end
return reply
