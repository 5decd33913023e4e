-- Sets the hold count of a read hold.
--
-- ARGV  prefix, field, lease (ms), count
--
-- Replies
--   pttl     field reads count times, each for at least the lease; the rest that the lock had before (see prolong)
--   {0, 1}   lost: there is no such hold, or it is dead; no other owner's hold was changed
local field, lease, count = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if not held(lock, field) then return {0, 1} end
local had = levels_of(field)
local life = left(field, had)
if life == -2 then return {0, 1} end

local longest = math.max(life, lease)
redis.call('hdel', lock, '') -- needs no memory, and so opens the way for the others
for i = count, 1, -1 do -- the new ones first: while the slot moves it is those that are refused
  redis.call('set', timeout(field, i), '1', 'px', longest)
end
if not recount(lock, field, count) then return {0, 1} end
untime(field, count + 1, had)
return prolong(longest, life) or {0, 1}
