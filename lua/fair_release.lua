-- Gives a fair lock back, and with it any place in the queue; the first live waiter gets the
-- lock, or whoever listens is woken if there is none.
--
-- ARGV  field, publish command, channel of the lock, prefix of the grants' channels
--
-- Replies
--   {1, heard}   done; so many processes heard of it, -1 if the server refused to tell
--   {0, heard}   not ours: the lock did not hold field; its place in the queue is gone
local field, publish = ARGV[1], ARGV[2]
local ours = held(lock, field)
if ours then redis.call('hdel', lock, field) end

local served, heard = false, 0
if not spoiled() then
  leave(field)
  if redis.call('exists', lock) == 0 then served, heard = serve(publish, ARGV[4]) end
end
if ours and not served then heard = wake(publish, ARGV[3]) end
return {ours and 1 or 0, heard or 0}
