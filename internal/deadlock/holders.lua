-- Reads who holds a lock, and what they wait for.
--
-- KEYS  the lock, the waits of its holders
--
-- Replies
--   {field, published, ...}   each holder, and its "end wait"; '' if it is not known to wait
--   {'', ''}                  the key is no lock, or the lock has too many holders
-- Not HKEYS: a Mutex does not need the permission for it. WRONGTYPE: the name is no lock.
local fields = redis.pcall('hgetall', KEYS[1])
if fields.err and string.match(fields.err, 'WRONGTYPE') then return {'', ''} end
if fields.err then return fields end
if #fields > 128 then return {'', ''} end
local now = redis.call('time')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local reply = {}
for i = 1, #fields, 2 do
  local field = fields[i]
  if field ~= 'mode' then -- of a read-write lock
    local known = redis.call('hget', KEYS[2], field)
    local till = string.match(known or '', '^(%d+) ')
    reply[#reply + 1] = field
    reply[#reply + 1] = till and tonumber(till) > now and known or ''
  end
end
return reply
