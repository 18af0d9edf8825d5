"""nameserver"""
