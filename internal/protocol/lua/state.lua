-- Reads a lock.
--
-- KEYS  the lock key, its token counter
--
-- Replies
--   {1, pttl, token, field, count, ...}   pttl as PTTL returns it, token as text ('0' if there is none)
--   {-1, 1}                               the key contains something other than a lock, {-2, 1} a read-write lock
local length = redis.pcall('hlen', KEYS[1])
if type(length) == 'table' then
  if string.find(length.err, 'WRONGTYPE', 1, true) then return {-1, 1} end
  return length
end
if redis.call('hexists', KEYS[1], 'mode') == 1 then return {-2, 1} end
if length >= 64 then return {-1, 1} end -- no lock, and too long to be read
local fields = redis.call('hgetall', KEYS[1])
if not locked(fields) then return {-1, 1} end
local token = redis.pcall('get', KEYS[2])
if type(token) ~= 'string' then token = '0' end
return {1, redis.call('pttl', KEYS[1]), token, unpack(fields)}
