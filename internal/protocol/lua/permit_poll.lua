-- Keeps the entries of one process alive, returns their states, and grants permits to the first entries in
-- line, as many as fit.
--
-- ARGV  publish command, the subcommand of PUBSUB that counts the subscribers of a channel ('' = they
--       cannot be counted here), and for each waiter: field, lease of its entry (ms), limit
--
-- Replies
--   {0, ms, member, status, 0, ...}   the permit that ends first, and in what time; then for each waiter:
--                                     0 = it waits, for its entry's lease; 1 = it has a permit, for at least
--                                     that, 2 = since this poll; -1 = neither
--   {-1, 1}                           the key is no semaphore
--   {-4, 1}                           the key of the line contains something else
--
-- Sent again, or delayed, it finds waiters and permits in place, or changes nothing.
local publish, count = ARGV[1], ARGV[2]
if spoiled() then return {-4, 1} end
if not queue then -- raises the error as the server words it
  redis.call('zcard', KEYS[3])
  redis.call('hlen', KEYS[4])
end
local now = clock()
local used, other = in_use(now)
if not used then return other end
local waiting = keep_alive(now, count)
local _, served = serve_all(publish, count, used, now)

local next = full(now)
local reply = {0, next[2], next[4]}
for i = 3, #ARGV, 3 do
  local field, status = ARGV[i], -1
  if served[field] then
    status = 2
  elseif waiting[field] then
    status = 0
  elseif has(set, field, now) then
    status = 1
  end
  if status > 0 and not prolong(set, field, now, ARGV[i + 1]) then status = -1 end
  reply[#reply + 1] = status
  reply[#reply + 1] = 0
end
return reply
