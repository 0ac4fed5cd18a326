-- Reads at one moment. ARGV: for each read the number of its words, then the words of a Redis command that changes nothing.
-- Gives the time (seconds, microseconds), and for each read its reply and, if the reply is large and will be checked, the digest by which
-- `commit.lua` knows whether it still holds. What is small is compared as it is; what never changes or is looked at loosely (in small
-- letters) is not compared at all; the fields of `HMGET` are digested by who reads them. Gives fewer than were asked for when they
-- grow large: a script has to end soon.
local function digest(command, reply)
    if not reply or type(reply) == 'number' or command == 'GET' or command == 'GETRANGE' then return false end
    if string.byte(command) >= 97 or command == 'HMGET' then return false end
    if type(reply) == 'string' then return #reply > 100 and redis.sha1hex(reply) end
    return #reply > 0 and redis.sha1hex(cmsgpack.pack(reply))
end

local time = redis.call('TIME')
local answer = {time[1], time[2]}
local at, size = 1, 0
while at <= #ARGV and size < 1048576 do
    local words = tonumber(ARGV[at])
    local reply = redis.call(unpack(ARGV, at + 1, at + words))
    answer[#answer + 1] = reply
    answer[#answer + 1] = digest(ARGV[at + 1], reply)
    if type(reply) == 'string' then
        size = size + #reply
    elseif type(reply) == 'table' then
        for _, part in ipairs(reply) do
            if type(part) == 'string' then size = size + #part end
        end
    end
    at = at + words + 1
end
return answer
