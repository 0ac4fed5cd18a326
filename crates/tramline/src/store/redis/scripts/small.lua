-- One command that has to be done on a server that is full, too: such a server lets a script go on that has begun with a removal.
-- KEYS[1]: a hash that is always there. ARGV: the words of the command.
redis.call('HDEL', KEYS[1], 'nothing')
return redis.call(unpack(ARGV))
