-- Lengthens the lease of a read hold. Creates nothing.
--
-- ARGV  prefix, field, lease (ms)
--
-- Replies  1 = each level lives for at least the lease; 0 = lost: there is no such hold, or it is
-- dead; nothing was changed
local field, lease = ARGV[2], ARGV[3]
if not held(lock, field) then return 0 end
local had = levels_of(field)
if left(field, had) == -2 then return 0 end
for i = 1, had do lengthen(timeout(field, i), lease) end
lengthen(lock, lease)
return 1
