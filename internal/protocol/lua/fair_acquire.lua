-- Takes a fair lock for a new owner if it is free and there are no waiters; else the owner may wait.
--
-- ARGV  field, lease (ms), life of a counter (ms; 0 = for ever; -1 = no token wished),
--       publish command, the subcommand of PUBSUB that counts the listeners of a channel ('' = they
--       cannot be counted here), and to wait: lease of the entry (ms), ticket, channel for its grant
--
-- Replies
--   {1, token}               field = 1, for at least the lease; token 0 if none was wished
--   {0, pttl, 1, holder}     the lock is held by another owner for pttl ms (-1: it has no
--                            expiry); if field wished to wait, it does
--   {-1, 1}                  the lock is of another type, {-2, 1} a read-write lock
--   {-3, 1}                  the counter holds something else than a token
--   {-4, 1}                  the queue is something else than a queue
--
-- Sent again it finds the field that it made, lengthens, and mints a newer token; or it
-- finds its entry, which keeps its place.
local field, lease, keep, publish, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if spoiled() then return {-4, 1} end

local ours, busy = examine(lock, 1, field)
if not ours and not busy and serve(publish, count) then
  ours, busy = examine(lock, 1, field)
end
if busy then
  if busy[1] == 0 and ARGV[6] then
    enqueue(field, ARGV[6], keep, ARGV[7], count, ARGV[8])
  end
  return busy
end

local token = token_for(keep)
if not token then return {-3, 1} end
if ours then
  lengthen(lock, lease)
else
  local refused = take(lock, field, lease)
  if refused then return refused end
end
store(token, keep)
return {1, token}
