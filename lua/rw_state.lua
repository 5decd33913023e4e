-- Reads a read-write lock.
--
-- KEYS  the lock, its claim, its token counter
-- ARGV  prefix
--
-- Replies
--   {1, pttl, token, field, count, ...}   of every live hold, a writer first; pttl as PTTL says it,
--                                         token as text ('0' if there is none)
--   {-1, 1}                               the key holds something else than a lock, {-5, 1} another kind of lock
local mode, refusal = examine_mode()
if refusal then return refusal end
local token = redis.pcall('get', KEYS[3])
if type(token) ~= 'string' then token = '0' end
local reply = {1, redis.call('pttl', lock), token}
local readers = {}
local fields = redis.call('hgetall', lock)
for i = 1, #fields, 2 do
  local field, count = fields[i], fields[i + 1]
  if writes(field) then
    reply[#reply + 1] = field
    reply[#reply + 1] = count
  elseif field ~= 'mode' and left(field, levels(count)) ~= -2 then
    readers[#readers + 1] = field
    readers[#readers + 1] = count
  end
end
for i = 1, #readers do reply[#reply + 1] = readers[i] end
return reply
