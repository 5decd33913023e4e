-- Ends the holds that the caller saw, whoever has them.
--
-- ARGV  prefix, publish command, channel, then the fields that the caller saw
--
-- Replies  1 = some of them were there, and have ended; 0 = none was, nothing was changed
local ended = false
for i = 4, #ARGV do
  local field = ARGV[i]
  if held(lock, field) then
    untime(field, 1, levels_of(field))
    redis.call('hdel', lock, field)
    ended = true
  end
end
if not ended then return 0 end
settle()
wake_all(ARGV[2], ARGV[3])
return 1
