-- Replaces the holder's field of locks by a min-hold placeholder, a field that no hold has. So no delayed
-- command of the hold finds the locks.
--
-- KEYS  n lock keys, then their n queues of Java's fair lock, if those are to be notified; and for one lock its
--       line and entries, if a delayed command may have added an entry
-- ARGV  from field, to field, how long (ms), publish command, then the channel of each lock
--
-- Replies
--   receivers        every key holds to; the least number of processes that a wake-up reached, -1 if one was refused
--   {0, receivers}   not ours: a key held neither; the other keys have the placeholder
--
-- Waiters ask again, and the reply contains the rest of the min hold. Sent again, it finds `to` in place, and writes it
-- again: see lengthen.
local from, to, rest, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local n, ours, kept = #ARGV - 4, true, {}
for i = 1, n do
  if held(KEYS[i], from) then
    redis.call('hdel', KEYS[i], '') -- needs no memory, and so opens the way for HSET
    -- mutant: min-hold-expiry-first
    local refused = take(KEYS[i], to, rest)
    if refused then return refused end
    redis.call('hdel', KEYS[i], from)
    kept[#kept + 1] = i
  elseif held(KEYS[i], to) then
    redis.call('hdel', KEYS[i], '') -- as above
    ours = recount(KEYS[i], to, '1') and ours
  else
    ours = false
  end
end
if KEYS[2 * n + 2] then
  redis.pcall('zrem', KEYS[2 * n + 1], from)
  redis.pcall('hdel', KEYS[2 * n + 2], from)
end
local receivers
for _, i in ipairs(kept) do
  local channel = ARGV[4 + i]
  local by = wake(publish, channel)
  local java = wake_java(publish, channel, KEYS[n + i])
  if by >= 0 then by = by + java end
  if not receivers or by < receivers then receivers = by end
end
if ours then return receivers or 0 end
return {0, receivers or 0}
