-- Leaves numbers out if this server goes on with what another one began: a replica that took over may lack the last moments of the primary, and
-- a server that was started anew those that it had not written to its disk. Numbers that were given in such moments may be in use, be it by a
-- worker, a reader or a process that remembers the catalogue, and must not be given to others.
-- KEYS[1]: a hash that is always there, with the counters. KEYS[2]: the counter of slices. ARGV: 'again' if the process has used the store before; what
-- the catalogue is known by from now on, unless nothing was lost; what is added to the counter of slices; then pairs of another counter and what is
-- added to it. Gives the least epoch of what is claimed from now on.
redis.call('HDEL', KEYS[1], 'nothing')
local info = redis.pcall('INFO', 'replication')
-- Every server that becomes a primary, or starts, calls its history by another name. Who may not know it never knows what was lost.
local history = type(info) == 'string' and string.match(info, 'master_replid:(%x+)')
if history and redis.call('HGET', KEYS[1], 'history') == history then
    return tonumber(redis.call('HGET', KEYS[1], 'epoch') or 0)
end
-- In a store that nobody has used yet no number was given.
if ARGV[1] == 'again' or redis.call('HEXISTS', KEYS[1], 'layout') == 1 then
    redis.call('HSET', KEYS[1], 'catalog', ARGV[2])
    redis.call('INCRBY', KEYS[2], ARGV[3])
    for at = 4, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[at], ARGV[at + 1]) end
end
if history then redis.call('HSET', KEYS[1], 'history', history) end
return tonumber(redis.call('HGET', KEYS[1], 'epoch') or 0)
