-- Acquires a lock for a new owner if it is free and its line is empty. Otherwise the owner may wait in the line.
--
-- KEYS  as in the prelude; or only the lock, and the counter if a token is wanted: then it overtakes the line
-- ARGV  field, lease (ms), life of a counter (ms; 0 = forever; -1 = no token wanted),
--       publish command, the subcommand of PUBSUB that counts the subscribers of a channel ('' = they
--       cannot be counted here), 1 if it must not acquire the lock without permission for the line, and, if
--       it may wait: lease of the entry (ms), ticket, channel for its grant
--
-- Replies
--   {1, token}                  field = 1, for at least the lease; token 0, or 1 alone, if none was wanted
--   {0, pttl, 1, holder}        the lock is held by another owner for pttl ms (-1: it has no expiry); by ''
--                               if it is free, and it is the turn of foreign waiters for so long
--   {0, pttl, 1, holder, last}  and field waits in the line; the last token, 0 if there is none or none was wanted
--   {-1, 1}                     the lock is of another type, {-2, 1} a read-write lock
--   {-3, 1}                     the counter contains something other than a token
--   {-4, 1}                     the key of the line contains something else
--
-- Sent again, it finds the field that it made, extends the lease, and creates a newer token; or it
-- finds its entry, which keeps its place.

-- The usual cases: the lock is free, the line is empty, and no token is wanted; or another owner has the lock, and
-- field enters the line behind others. Defining functions would cost more than they do.
-- mutant: line-newcomers-pass
if ARGV[3] == '-1' and redis.pcall('exists', KEYS[1], KEYS[3] or KEYS[1]) == 0 then
  redis.call('hset', KEYS[1], ARGV[1], '1')
  local set = redis.pcall('pexpire', KEYS[1], ARGV[2])
  if type(set) ~= 'table' then return 1 end
  redis.call('hdel', KEYS[1], ARGV[1]) -- see take
  return set
end
local last = ARGV[7] and KEYS[3] and redis.pcall('hlen', KEYS[1]) == 1 and redis.pcall('zrevrange', KEYS[3], '0', '0', 'withscores')[2]
local has = last and redis.call('hgetall', KEYS[1])
if has and has[1] and has[1] ~= ARGV[1] and has[1] ~= 'mode' and string.find(has[1], ':', 1, true) and string.find(has[2], '^[1-9]%d*$')
  and redis.pcall('hexists', KEYS[4], has[1]) == 0 and redis.call('hexists', KEYS[4], ARGV[1]) == 0 then -- see enqueue
  local lease, now = tonumber(ARGV[7]), redis.call('time')
  local keeps = redis.call('pttl', KEYS[4]) -- which outlives the line if entries were set aside
  if keeps < lease then keeps = ARGV[7] end
  redis.call('pexpire', KEYS[3], keeps)
  local unsubscribed = ARGV[5] ~= '' and redis.pcall('pubsub', ARGV[5], ARGV[9])[2] == 0
  redis.call('hset', KEYS[4], ARGV[1], string.format('%.0f ', now[1] * 1000 + math.floor(now[2] / 1000) + lease) ..
    ARGV[7] .. ' ' .. ARGV[3] .. ' ' .. ARGV[8] .. (unsubscribed and ' 2 ' or ' 0 ') .. ARGV[9]) -- %s would end at a NUL
  redis.call('zadd', KEYS[3], 'nx', last + 1, ARGV[1])
  redis.call('pexpire', KEYS[3], keeps) -- again, after what may have made it
  redis.call('pexpire', KEYS[4], keeps)
  -- mutant: wanted-unannounced/2
  redis.pcall(ARGV[4], 'relock_wanted' .. string.sub(KEYS[3], 12), '') -- see announce
  local token = ARGV[3] ~= '-1' and redis.pcall('get', KEYS[2]) -- see last_token
  token = type(token) == 'string' and string.find(token, '^%d+$') and tonumber(token) or 0
  return {0, redis.call('pttl', KEYS[1]), 1, has[1], token}
end

-- prelude
local field, lease, keep, publish, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if queue and spoiled() then return {-4, 1} end
if not queue and ARGV[6] == '1' then -- raises the error as the server words it
  redis.call('zcard', KEYS[3])
  redis.call('hlen', KEYS[4])
end

local ours, busy = examine(lock, 1, field)
local token
-- mutant: fair-overtaken
if queue and not ours and not busy then
  local wait = reserved(false)
  if wait > 0 then
    busy = {0, wait, 1, ''}
  else
    local served, _, minted = serve(publish, first(count))
    if served then ours, busy = examine(lock, 1, field) end
    if served == field then token = minted end
  end
end
if busy then
  if queue and busy[1] == 0 and ARGV[7] then
    enqueue(field, ARGV[7], keep, ARGV[8], count, ARGV[9])
    announce(publish)
    busy[5] = last_token(keep)
  end
  return busy
end

token = token or token_for(keep)
if not token then return {-3, 1} end
-- mutant: acquire-increments/3
if not (ours and lengthen(lock, lease)) then
  local refused = take(lock, field, lease)
  if refused then return refused end
end
store(token, keep)
return {1, token}
