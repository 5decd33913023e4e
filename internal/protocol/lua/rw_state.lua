-- Reads a read-write lock.
--
-- KEYS  the lock, its token counter
-- ARGV  prefix
--
-- Replies
--   {1, pttl, token, field, count, ...}   of every live hold, a writer first; pttl of the lock, as
--                                         PTTL returns it, or of the longest reader's hold if that is
--                                         less; token as text ('0' if there is none)
--   {-1, 1}                               the key contains something other than a lock, {-5, 1} another kind of lock
local mode, refusal = examine_mode()
if refusal then return refusal end
local token = redis.pcall('get', KEYS[2])
if type(token) ~= 'string' then token = '0' end
local reply = {1, redis.call('pttl', lock), token}
local readers, longest = {}, -1
local fields = redis.call('hgetall', lock)
if not locked(fields) then return {-1, 1} end
for i = 1, #fields, 2 do
  local field, count = fields[i], fields[i + 1]
  if writes(field) then
    reply[#reply + 1] = field
    reply[#reply + 1] = count
  elseif field ~= 'mode' then
    local life = left(field, levels(count))
    if life ~= -2 then
      longest = math.max(longest, life)
      readers[#readers + 1] = field
      readers[#readers + 1] = count
    end
  end
end
if mode == 'read' and longest >= 0 and longest < reply[2] then reply[2] = longest end
for i = 1, #readers do reply[#reply + 1] = readers[i] end
return reply
