-- Raises the token counters of held locks to a token, where they are lower.
--
-- KEYS  n lock keys, then their n token counters
-- ARGV  field, n, life of a counter (ms; 0 = forever), token
--
-- Replies
--   {1, token}   every key holds field, and no counter is below token
--   {0, i}       lost: key i does not hold field; nothing was changed
--   {-3, i}      counter i contains something other than a token
local field, n, keep, token = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
for i = 1, n do
  if not held(KEYS[i], field) then return {0, i} end
end

local newer, bad = next_token(n)
if not newer then return {-3, bad} end

for i = n + 1, #KEYS do
  local last = redis.call('get', KEYS[i])
  if not last or tonumber(last) < tonumber(token) then store(KEYS[i], token, keep) end
end
return {1, tonumber(token)}
