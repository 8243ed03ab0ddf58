"""The course's subject as torch code: what a lesson builds by hand and later lessons reuse.

collectives  all-reduce written with sends and receives, one function per algorithm
data         data parallelism: parameter broadcast, gradient averaging, buckets, the parameter server
activations  the bytes that autograd keeps for the backward pass
model        the small language model that runs through the course
tensor_ops   f, g and their kin: collectives that autograd knows
tensor       the model's layers cut over a group of ranks
zero         ZeRO stages 1, 2 and 3
zero_shards  the pieces that the stages are made of, and the count of their bytes
resnet       the image classifier whose memory lesson 01 counts
"""
