-- Extends the lease of a read hold. Creates nothing.
--
-- ARGV  prefix, field, lease (ms)
--
-- Replies
--   pttl     each count lives for at least the lease; the rest that the lock had before (see prolong)
--   {0, 1}   lost: there is no such hold, or it is dead
local field, lease = ARGV[2], ARGV[3]
if not held(lock, field) then return {0, 1} end
local had = levels_of(field)
local life = left(field, had)
if life == -2 then return {0, 1} end
for i = 1, had do lengthen(timeout(field, i), lease) end
return prolong(lease, life) or {0, 1}
