-- Reads a semaphore.
--
-- Replies
--   {1, waiting, member, ms, ...}   the number of entries in the line, and the permits in use, with the rest of their leases
--   {-1, 1}                         the key is no semaphore
--   {-4, 1}                         the key of the line contains something else
if queue and spoiled() then return {-4, 1} end
local all, other = permits()
if not all then return other end
local now = clock()
local reply = {1, queue and redis.call('zcard', queue) or 0}
for i = 1, #all, 2 do
  if tonumber(all[i + 1]) > now then
    reply[#reply + 1] = all[i]
    reply[#reply + 1] = tonumber(all[i + 1]) - now
  end
end
return reply
