-- Lengthens the lease of locks that are held. Creates nothing.
--
-- KEYS  n lock keys
-- ARGV  field, lease (ms)
--
-- Replies
--   1   every key lives for at least the lease
--   0   lost: a key does not hold field
local field, lease = ARGV[1], ARGV[2]
for i = 1, #KEYS do
  -- mutant: renew-no-owner/1, renew-recreates/1
  if not held(KEYS[i], field) then return 0 end
end
for i = 1, #KEYS do
  if not lengthen(KEYS[i], lease) then return 0 end
end
return 1
