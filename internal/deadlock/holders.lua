-- Reads who holds a lock, and what they wait for.
--
-- KEYS  the lock, the waits of its holders
--
-- Replies
--   {field, published, ...}   each holder, and its "end wait"; '' if it is not known to wait
--   {'', ''}                  the key is no lock, or the lock has too many holders
local fields = redis.pcall('hkeys', KEYS[1])
if fields.err or #fields > 64 then return {'', ''} end
local now = redis.call('time')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local reply = {}
for _, field in ipairs(fields) do
  if field ~= 'mode' then -- of a read-write lock
    local known = redis.call('hget', KEYS[2], field)
    local till = string.match(known or '', '^(%d+) ')
    reply[#reply + 1] = field
    -- mutant: deadlock-unconfirmed/3
    reply[#reply + 1] = till and tonumber(till) > now and known or ''
  end
end
return reply
