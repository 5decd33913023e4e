-- Acquires a read-write lock for a new reader.
--
-- KEYS  the lock, its claim
-- ARGV  prefix, field, lease (ms), the owner's field as a writer ('' = does not write), and, if it waits: publish
--       command, channel (see announce)
--
-- Replies
--   pttl                     field reads, for at least the lease; the rest that the lock had before (see seen)
--   {0, pttl, 1, holder}     a writer has the lock for pttl ms
--   {0, pttl, 1, writer, 1}  a waiting writer has claimed it for pttl ms
--   {-1, 1}                  the key contains something other than a lock, {-5, 1} another kind of lock
--
-- A writer may also read, whatever claims there are. Sent again, it finds the field that it
-- made, and extends the lease, unless the hold is dead by now:
-- a writer may be waiting only for the other readers.

-- The usual case: the lock is free, or read, and not claimed. Defining functions
-- would cost more than it does.
local found = redis.pcall('hmget', KEYS[1], 'mode', ARGV[2])
local there = found[1] == 'read' and 1 or found[1] == false and 0
if there == 1 then
  local some = redis.pcall('hrandfield', KEYS[1], '2', 'withvalues') -- unknown before Redis 6.2
  if #some ~= 4 then there = nil end
  for i = 1, #some, 2 do -- see locked
    if some[i] ~= 'mode' and
      not (string.find(some[i], ':', 1, true) and string.find(some[i + 1], '^[1-9]%d*$')) then there = nil end
  end
end
if there and not found[2] and redis.call('exists', KEYS[1], KEYS[2]) == there then
  -- mutant: reader-never-dies/1
  redis.call('set', ARGV[1] .. ':' .. ARGV[2] .. ':rwlock_timeout:1', '1', 'px', ARGV[3])
  redis.call('hset', KEYS[1], 'mode', 'read', ARGV[2], '1')
  local lease = tonumber(ARGV[3])
  local had = there == 1 and redis.call('pttl', KEYS[1]) or -1
  if had >= lease then return lease end
  local set = redis.pcall('pexpire', KEYS[1], ARGV[3])
  if set == 0 then -- see join
    redis.call('hset', KEYS[1], 'mode', 'read', ARGV[2], '1')
    set = redis.pcall('pexpire', KEYS[1], ARGV[3])
  end
  if type(set) ~= 'table' then return had < 0 and lease or math.max(1, had) end -- see seen
  redis.call('hdel', KEYS[1], ARGV[2]) -- see join
  if there == 0 then redis.call('del', KEYS[1]) end
  return set
end

-- prelude
local field, lease = ARGV[2], ARGV[3]
local mode, refusal = examine_mode()
if refusal then return refusal end
local life = mode and redis.call('hexists', lock, field) == 1 and left(field, levels_of(field)) or -2
local reads = life ~= -2

if mode == 'write' then
  -- mutant: reader-joins-writer
  if redis.call('hexists', lock, ARGV[4]) == 0 then return busy(ARGV[5], ARGV[6]) end
elseif not reads then
  local from, writer = claimed(KEYS[2])
  -- mutant: writer-starves
  if from and clock() >= from then return {0, redis.call('pttl', KEYS[2]), 1, writer, 1} end
end

if reads then
  for i = 1, levels_of(field) do lengthen(timeout(field, i), lease) end
  local reply = prolong(lease, life)
  if reply then return reply end
  mode = nil
end
-- mutant: reader-never-dies/2
redis.call('set', timeout(field, 1), '1', 'px', lease)
local had = redis.call('pttl', lock)
return join(not mode, mode or 'read', field, lease) or seen(had, lease)
