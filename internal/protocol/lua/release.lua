-- Reduces hold counts. A count of 0 releases the lock and wakes its waiters.
--
-- KEYS  n lock keys, then their n queues of Java's fair lock, if those are to be notified
-- ARGV  field, for each lock its channel ('' = wake no one) and its count, publish command; only the
--       channel if one lock is to be released with `publish`: each argument takes time
--
-- Replies
--   receivers        done; the least number of processes that a wake-up reached, -1 if one was refused
--   {0, receivers}   not ours: a key did not hold field; the other keys were released

-- The usual cases: one key that is released, or whose count stays above 0. Defining
-- functions would cost more than they do.
local try, channel, count = redis.pcall, ARGV[2], ARGV[3] or '0'
if not ARGV[5] and channel ~= '' then
  if count == '0' then
    if try('hdel', KEYS[1], ARGV[1]) == 1 then
      local publish = ARGV[4] or 'publish'
      local receivers, first = try(publish, channel, '0'), KEYS[2] and try('lindex', KEYS[2], '0')
      if receivers ~= 0 and type(receivers) == 'table' then receivers = -1 end -- see wake
      if first and type(first) == 'string' then -- see wake_java
        local java = try(publish, channel .. ':' .. first, '0')
        if receivers >= 0 and type(java) == 'number' then receivers = receivers + java end
      end
      return receivers
    end
  elseif try('hexists', KEYS[1], ARGV[1]) == 1 then
    redis.call('hdel', KEYS[1], '') -- needs no memory, and so opens the way for HSET
    if redis.call('hset', KEYS[1], ARGV[1], count) == 0 then return 0 end
    redis.call('hdel', KEYS[1], ARGV[1]) -- see recount
  end
end

-- prelude
local field, n = ARGV[1], math.max(1, #ARGV / 2 - 1)
local publish = ARGV[2 * n + 2] or 'publish'
local ours, freed = true, {}
for i = 1, n do
  local channel, count = ARGV[2 * i], ARGV[2 * i + 1] or '0'
  -- mutant: release-no-owner/1
  if not held(KEYS[i], field) then
    ours = false
  elseif count ~= '0' then
    redis.call('hdel', KEYS[i], '') -- needs no memory, and so opens the way for HSET
    ours = recount(KEYS[i], field, count) and ours
  else
    -- mutant: release-no-owner/2
    redis.call('hdel', KEYS[i], field)
    if channel ~= '' then freed[#freed + 1] = i end
  end
end
local receivers
for _, i in ipairs(freed) do
  local channel = ARGV[2 * i]
  local by = wake(publish, channel)
  local java = wake_java(publish, channel, KEYS[n + i])
  if by >= 0 then by = by + java end
  if not receivers or by < receivers then receivers = by end
end
if ours then return receivers or 0 end
return {0, receivers or 0}
