-- Keeps the entries of one process alive, returns their states, and grants the lock to the first entry
-- in line if it is free.
--
-- ARGV  publish command, the subcommand of PUBSUB that counts the subscribers of a channel ('' = they
--       cannot be counted here), and for each waiter: field, lease of its entry (ms), life of a counter
--       (ms; 0 = forever; -1 = no token wanted) and after a blank the last token that it received, if any
--
-- Replies
--   {0, pttl, holder, status, token, ...}   of the lock its PTTL and holder ('' during a turn of foreign waiters,
--                                           which lasts for pttl), then for each waiter:
--                                           0 = it waits, for its entry's lease; 1 = it holds the
--                                           lock, for at least that, 2 = since this poll; -1 = neither;
--                                           -3 = it holds the lock, but the counter contains something other
--                                           than a token; token: its own, or the last one if it waits
--   {-1, 1}                                 the lock is of another type, {-2, 1} a read-write lock
--   {-4, 1}                                 the key of the line contains something else
--
-- Sent again, or delayed, it finds waiters and a holder in place, or changes nothing.
local publish, count = ARGV[1], ARGV[2]
if spoiled() then return {-4, 1} end
if not queue then -- raises the error as the server words it
  redis.call('zcard', KEYS[3])
  redis.call('hlen', KEYS[4])
end

local now = clock()
local waiting = keep_alive(now, count)
local _, busy = examine(lock, 1, '')
local served, minted
local wait = not busy and reserved(waiting[redis.call('zrange', queue, '0', '0')[1]]) or 0
if busy then
  local at, interval, till = foreign()
  if at and till > 0 then settle(now, interval, true) end
  if next(waiting) then announce(publish) end
elseif wait > 0 then
  busy = {0, wait, 1, ''}
else
  served, _, minted = serve(publish, first(count))
  if served then
    waiting[served] = nil
    _, busy = examine(lock, 1, '')
  end
end
if busy and busy[1] ~= 0 then return busy end

local reply = {0, busy and busy[2] or -2, busy and busy[4] or ''}
for i = 3, #ARGV, 3 do
  local field, status, token = ARGV[i], -1, 0
  local keep, seen = string.match(ARGV[i + 2], '^(%-?%d+) ?(%d*)$')
  if waiting[field] then
    status, token = 0, last_token(keep)
  elseif held(lock, field) and lengthen(lock, ARGV[i + 1]) then
    token = last_token(keep)
    if field == served then
      -- mutant: poll-mints-again/1
      token = minted
    -- mutant: poll-mints-again/2
    elseif seen == '' or token <= tonumber(seen) then -- not the token of its grant: the counter, or the grant, was lost
      token = token_for(keep)
    end
    status = token and (field == served and 2 or 1) or -3
    if token then store(token, keep) end
  end
  reply[#reply + 1] = status
  reply[#reply + 1] = token or 0
end
return reply
