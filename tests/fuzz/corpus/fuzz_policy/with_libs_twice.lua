policy 0
lib a 1
lib a 1
xx