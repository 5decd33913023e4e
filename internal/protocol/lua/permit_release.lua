-- Gives a permit back, and removes any entry of the owner in the line. The first entries get permits, as many as
-- fit.
--
-- KEYS  as in the prelude, or the semaphore alone: then no one is served
-- ARGV  field, publish command, the subcommand of PUBSUB that counts the subscribers of a channel ('' =
--       they cannot be counted here); and to keep the share reserved: the member that replaces the permit, and for
--       how long (ms). '' in place of that member: a permit is forced, and if field waits, it keeps its entry
--
-- Replies
--   receivers        done; no entry was served
--   'receivers'      done, and some were: the least number of processes that a message reached, -1 if one was refused
--   {0, receivers}   not ours: field had no permit, or its lease was over; its entry in the line is gone, if not forced
--   {-1, 1}          forced, and the key is no semaphore
--   {-4, 1}          forced, and the key of the line contains something else
--
-- Sent again, it finds the replacement in place, or serves the line.

-- The usual case: one permit, an empty line, and permits that are all live. Defining functions would cost more than it does.
if KEYS[3] and not ARGV[4] and string.sub(ARGV[1], -2) == ':1' and redis.pcall('exists', KEYS[3], KEYS[4]) == 0 then
  local first, now = redis.pcall('zrange', KEYS[1], '0', '0', 'withscores'), redis.call('time')
  local till = first[2] and tonumber(first[2])
  if till and first[1] ~= ARGV[1] and string.find(first[1], '.kept:', 1, true) then till = nil end -- see below
  -- mutant: permit-release-no-owner/1
  if till and till > now[1] * 1000 + now[2] / 1000 and redis.call('zrem', KEYS[1], ARGV[1]) == 1 then return 0 end
end

-- prelude
local field, publish, count, to, rest = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local forced, now = to == '', clock()
if forced then
  to = nil
  local n, other = size()
  if queue and spoiled() then other = {-4, 1} end
  if other then return other end
end
local ours = weight(field) and has(set, field, now)
if ours and to then
  redis.call('zrem', set, '') -- needs no memory, and so opens the way for ZADD
  local refused = give(to, now, rest)
  if refused then return refused end
end
-- mutant: permit-release-no-owner/2
if ours then remove(set, field) end
-- If a placeholder ends last, the set has to end with it: it was to live as long as the permit's lease.
local last = ours and redis.call('zrange', set, '-1', '-1')[1]
if last and string.find(last, '.kept:', 1, true) then redis.call('pexpire', set, life(set, now)) end
if to and not ours and has(set, to, now) then
  ours = true
  redis.call('pexpire', set, life(set, now)) -- always: see lengthen
end

local served, receivers = {}, nil
if queue and not spoiled() and queue then
  if ours or not forced then leave(field) end
  local used = in_use(now)
  if used then used, served, receivers = serve_all(publish, count, used, now, to) end
end
if not ours then return {0, receivers or 0} end
if receivers then return tostring(receivers) end
return 0
