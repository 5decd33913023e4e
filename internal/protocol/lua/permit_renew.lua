-- Extends the leases of several permits. Creates nothing, and brings none back.
--
-- KEYS  the semaphore of each permit
-- ARGV  lease (ms), then each permit
--
-- Replies
--   the number of permits   all live for at least the lease
--   {i, ...}                these are lost: the semaphore does not have permit i, or its lease was over. The others live for
--                           at least the lease
local lease, now, lost = tonumber(ARGV[1]), clock(), {}
for i = 1, #KEYS do
  -- mutant: permit-renew-recreates/1
  if not (has(KEYS[i], ARGV[1 + i], now) and prolong(KEYS[i], ARGV[1 + i], now, lease)) then
    lost[#lost + 1] = i
  end
end
if #lost == 0 then return #KEYS end
return lost
