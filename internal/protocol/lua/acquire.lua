-- Acquires every lock for a new owner, or none of them.
--
-- KEYS  n lock keys, then the token counters if a token is wanted, then n lines if the line counts:
--       a lock with waiters in its line is not acquired
-- ARGV  field, lease (ms), n, life of a counter (ms; 0 = forever), number of counters; without the last
--       three it is one lock and no token: each argument takes time
--
-- Replies
--   {1, token}               all n keys hold field = 1 for at least the lease; token 0, or 1 alone, without counters
--   {0, pttl, i, holder}     key i is held by another owner for pttl ms (-1: it has no expiry); '' and
--                            0 ms: it is free, but its line has waiters
--   {-1, i}                  key i contains something other than a lock, {-2, i} a read-write lock
--   {-3, i}                  counter i contains something other than a token
--
-- Sent again, it finds the field that it made, extends the lease, and creates a newer token.

-- The usual case: one key that is free, an empty line, and no token. Defining functions would cost
-- more than it does.
if not ARGV[3] and redis.pcall('exists', KEYS[1], KEYS[2] or KEYS[1]) == 0 then
  redis.call('hset', KEYS[1], ARGV[1], '1')
  local set = redis.pcall('pexpire', KEYS[1], ARGV[2])
  if type(set) ~= 'table' then return 1 end
  redis.call('hdel', KEYS[1], ARGV[1]) -- see take
  return set
end

-- prelude
local field, lease, n, keep = ARGV[1], ARGV[2], tonumber(ARGV[3] or 1), ARGV[4]
local last = n + (ARGV[5] or 0)
local ours = {}
for i = 1, n do
  local busy
  ours[i], busy = examine(KEYS[i], i, field)
  if busy then return busy end
  if not ours[i] and KEYS[last + i] and redis.pcall('exists', KEYS[last + i]) == 1 then return {0, 0, i, ''} end
end

local token, bad = next_token(n, last)
if not token then return {-3, bad} end

for i = 1, n do
  -- mutant: acquire-increments/2
  if not (ours[i] and lengthen(KEYS[i], lease)) then
    local refused = take(KEYS[i], field, lease)
    if refused then
      for j = 1, i - 1 do
        if not ours[j] then redis.call('hdel', KEYS[j], field) end
      end
      return refused
    end
  end
end
store_token(n, token, keep, last)
return {1, token}
