-- Takes a read-write lock for a new reader.
--
-- ARGV  prefix, field, lease (ms)
--
-- Replies
--   {1, 0}                   field reads, for at least the lease
--   {0, pttl, 1, holder}     a writer has the lock, or has claimed it, for pttl ms
--   {-1, 1}                  the key holds something else than a lock, {-5, 1} another kind of lock
--
-- A writer may read besides, and needs not mind claims. Sent again it finds the field it
-- made, and lengthens.
local field, lease = ARGV[2], tonumber(ARGV[3])
local mode, refusal = examine_mode()
if refusal then return refusal end
local reads = mode and redis.call('hexists', lock, field) == 1

if mode == 'write' then
  if redis.call('hexists', lock, field .. ':write') == 0 then return busy() end
elseif not reads then
  local from, writer = claimed()
  if from and clock() >= from then return {0, redis.call('pttl', claim), 1, writer} end
end

if reads then
  for i = 1, levels_of(field) do lengthen(timeout(field, i), lease) end
  lengthen(lock, lease)
  return {1, 0}
end
redis.call('set', timeout(field, 1), '1', 'px', lease)
return join(not mode, mode or 'read', field, lease) or {1, 0}
