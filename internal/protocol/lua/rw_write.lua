-- Acquires a read-write lock for a new writer.
--
-- KEYS  the lock, its claim, and its token counter if a token is wanted
-- ARGV  prefix, field, lease (ms), life of a counter (ms; 0 = forever), life of a claim (ms;
--       0 = does not wait), how long it lets new readers in (ms), and, if it waits: publish command, channel (see
--       announce)
--
-- Replies
--   {1, token}               field writes, for at least the lease; token 0, or 1 alone, without a counter
--   {0, pttl, 1, holder}     another owner has the lock for pttl ms; if the holders are readers, and field
--                            waits, it claims the lock
--   {-1, 1}                  the key contains something other than a lock, {-5, 1} another kind of lock
--   {-3, 1}                  the counter contains something other than a token
--
-- Sent again, it finds the field that it made, extends the lease, and creates a newer token.

-- The usual case: the lock is free, and no token is wanted. Defining functions would cost more than it does.
if #KEYS == 2 and redis.call('exists', KEYS[1], KEYS[2]) == 0 then
  redis.call('hset', KEYS[1], 'mode', 'write', ARGV[2], '1')
  local set = redis.pcall('pexpire', KEYS[1], ARGV[3])
  if type(set) ~= 'table' then return 1 end
  redis.call('del', KEYS[1]) -- see join
  return set
end

-- prelude
local claim, field, lease, keep, claiming, grace = KEYS[2], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local mode, refusal = examine_mode()
if refusal then return refusal end
local ours = mode == 'write' and redis.call('hexists', lock, field) == 1
if mode == 'write' and not ours then return busy(ARGV[7], ARGV[8]) end
if mode == 'read' then
  local reader = survey({}, 3)
  if reader then
    announce(ARGV[7], ARGV[8])
    if claiming > 0 then
      -- One claim counts for all waiting writers: it begins when the first of them came, and lives for as
      -- long as each of them wants. It begins no later than one that is made now: the clock may
      -- have been set back since, or belong to another server.
      local from = math.min(claimed(claim) or math.huge, clock() + grace)
      local life = math.max(claiming, redis.call('pttl', claim))
      redis.pcall('set', claim, string.format('%.0f ', from) .. field, 'px', life) -- %s ends at a NUL
    end
    return {0, redis.call('pttl', lock), 1, reader}
  end
end

local token = next_token(2)
if not token then return {-3, 1} end
if not (ours and lengthen(lock, lease)) then
  refusal = join(true, 'write', field, lease)
  if refusal then return refusal end
end
redis.call('del', claim)
store_token(2, token, keep)
return {1, token}
