-- Gives a permit to a new owner if there is room and the line is empty. Otherwise the owner may wait in the line.
--
-- ARGV  field, lease (ms), limit, publish command, the subcommand of PUBSUB that counts the subscribers of a
--       channel ('' = they cannot be counted here), and, if it may wait: lease of the entry (ms), ticket,
--       channel for its grant
--
-- Replies
--   1                        field has a permit, for at least the lease
--   {0, ms, 1, member}       there is no room, or others wait; the permit that ends first does so in that time
--   {0, ms, 1, member, 0}    and field waits in the line
--   {-1, 1}                  the key is no semaphore
--   {-4, 1}                  the key of the line contains something else
--
-- Sent again, it finds the permit, and extends the lease, or finds the entry, which keeps its place.

-- The usual case: one permit, an empty line, and room beside permits that are all live. Defining functions would cost more
-- than it does. If one of the three keys exists and ZCARD is above 0, that is the semaphore, and there is no line.
local found = string.sub(ARGV[1], -2) == ':1' and redis.pcall('exists', KEYS[1], KEYS[3], KEYS[4])
local used = found == 0 and 0 or found == 1 and redis.pcall('zcard', KEYS[1])
-- mutant: permit-over-limit/1
if type(used) == 'number' and used < tonumber(ARGV[3]) and (used > 0 or found == 0) then
  local now, fits, life = redis.call('time'), used == 0, ARGV[2]
  now = now[1] * 1000 + math.floor(now[2] / 1000)
  if not fits then -- see in_use and life
    local first = redis.call('zrange', KEYS[1], '0', '0', 'withscores')
    local last = redis.call('zrange', KEYS[1], '-1', '-1', 'withscores')
    local member = '^%x+%-%x+%-%x+%-%x+%-%x+:%d+[.kept]*:[1-9]%d*:?%d*$'
    -- mutant: permit-live-dropped/1
    if last[1] and string.find(first[1], member) and string.find(last[1], member) and tonumber(first[2]) > now then fits = true end
    if fits and last[2] - now > tonumber(life) then life = string.format('%.0f', last[2] - now) end
  end
  -- NX: a copy of a request that was granted finds the permit.
  if fits and redis.call('zadd', KEYS[1], 'nx', string.format('%.0f', now + ARGV[2]), ARGV[1]) == 1 then
    local set = redis.pcall('pexpire', KEYS[1], life)
    if set == 0 then -- see give
      redis.call('zadd', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
      set = redis.pcall('pexpire', KEYS[1], life)
    end
    if type(set) ~= 'table' then return 1 end
    redis.call('zrem', KEYS[1], ARGV[1]) -- see give
    return set
  end
end

-- prelude
local field, lease, limit, publish, count = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
if spoiled() then return {-4, 1} end
if not queue then -- raises the error as the server words it
  redis.call('zcard', KEYS[3])
  redis.call('hlen', KEYS[4])
end
local now = clock()
local used, other = in_use(now)
if not used then return other end
local served
if not redis.call('zscore', set, field) then
  used, served = serve_all(publish, count, used, now)
  if not served[field] then
    -- mutant: permit-over-limit/2, permit-overtakes
    if redis.call('exists', queue) == 1 or used + weight(field) > tonumber(limit) then
      local reply = full(now)
      if ARGV[6] then
        enqueue(field, ARGV[6], limit, ARGV[7], count, ARGV[8])
        reply[5] = 0
      end
      return reply
    end
    -- An earlier copy may have left an entry, which was set aside. Without one nothing is written before ZADD, which a server
    -- that is out of memory rejects.
    if redis.call('hexists', entries, field) == 1 then leave(field) end
    return give(field, now, lease) or 1
  end
end
if not prolong(set, field, now, lease) then return give(field, now, lease) or 1 end
return 1
