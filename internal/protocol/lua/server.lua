-- Asks which server runs this.
--
-- KEYS  a lock key: its node is asked
--
-- Replies
--   the run id of the server; '' if it does not say, as where the user may not use INFO
local info = redis.pcall('info', 'server')
if type(info) ~= 'string' then return '' end
return string.match(info, 'run_id:(%w+)') or ''
