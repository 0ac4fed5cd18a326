-- Writes a step, if all that it has read is still so. Everything is checked before the first write, so a step happens or it does not.
-- KEYS[1]: who has the turn, if somebody was overtaken too often. ARGV: the name of the step, the number of its reads; for each
-- read the number of its words, the words and the digest of its reply; then for each write the number of its words and the words.
-- Gives 'done', 'changed' if a read gives something else by now, 'wait' if it is somebody else's turn.
local function digest(reply)
    if type(reply) == 'string' then return redis.sha1hex(reply) end
    return redis.sha1hex(cmsgpack.pack(reply))
end

local turn = redis.call('GET', KEYS[1])
if turn and turn ~= ARGV[1] then return 'wait' end

local at = 3
for _ = 1, tonumber(ARGV[2]) do
    local words = tonumber(ARGV[at])
    local reply = redis.call(unpack(ARGV, at + 1, at + words))
    if digest(reply) ~= ARGV[at + words + 1] then return 'changed' end
    at = at + words + 2
end
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    redis.call(unpack(ARGV, at + 1, at + words))
    at = at + words + 1
end
if turn then redis.call('DEL', KEYS[1]) end
return 'done'
