-- Ends the holds that the caller saw, of any owner.
--
-- ARGV  prefix, publish command, channel, then the fields that the caller saw
--
-- Replies  1 = some of them were there, and have ended; 0 = none was, nothing was changed
local gone, n = {}, 0
for i = 4, #ARGV do
  local field = ARGV[i]
  if held(lock, field) then
    local had = writes(field) and 0 or levels_of(field)
    left(field, had) -- or, while the slot moves, an error
    gone[field], n = had, n + 1
  end
end
if n == 0 then return 0 end
settle(gone, heir(gone, n + few))
wake_all(ARGV[2], ARGV[3])
return 1
