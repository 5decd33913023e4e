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
    -- mutant: permit-over-limit/1, permit-overtakes
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
prolong(set, field, now, lease)
return 1
