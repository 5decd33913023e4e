-- Registers a client, for people who look at its holds.
--
-- KEYS  the key of the client
-- ARGV  lease (ms; 0: remove it), host, process id, program, since when
--
-- Replies  1 = it is registered, for the lease; else it was removed, or was not there
if ARGV[1] == '0' then return redis.call('hdel', KEYS[1], 'host', 'pid', 'program', 'since') end
redis.call('hset', KEYS[1], 'host', ARGV[2], 'pid', ARGV[3], 'program', ARGV[4], 'since', ARGV[5])
local set = redis.pcall('pexpire', KEYS[1], ARGV[1])
if type(set) == 'table' then redis.call('hdel', KEYS[1], 'host', 'pid', 'program', 'since') end -- no key stays without expiry
return set
